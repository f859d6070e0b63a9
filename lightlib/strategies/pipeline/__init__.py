"""The pipeline axis: stages, schedules, evaluation."""
