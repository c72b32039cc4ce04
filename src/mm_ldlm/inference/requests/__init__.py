"""Requests to a loaded model: functions whose first argument is the model, the methods of `MMLDLM`."""
