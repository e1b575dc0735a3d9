"""The simulated VBARs beside those of comfy-aimdo's own binary, over a stand-in for the driver."""
