"""The published baseline, reproduced: two independent simulators of the same model should agree."""
