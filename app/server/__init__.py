"""The local server: other programs on this computer ask the loaded model, in OpenAI's words.

Loopback only, off until somebody turns it on, one reply at a time. It knows HTTP and the engine's
seam. It refuses to know Qt and torch: who loads the model is somebody else's (`source`).
"""
