"""What a model scores on tasks that it was not trained for, from a checkpoint alone.

job.py, results.py, lambada.py and wikitext.py import no torch: they are read before anything is started.
"""
