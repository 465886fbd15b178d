"""What a checkpoint's model scores on a task, without any training.

job.py, results.py, lambada.py and wikitext.py import no torch: they are read before anything is started.
"""
