"""Text from a trained model, and what it makes of given text, at any layout, without an engine for training.

`InferenceModel` (inference_model.py) runs the model; what asks it for scores and chooses tokens knows no ranks. This
package file, options.py, texts.py and windows.py import no torch: they are read before anything is started.
"""
