"""Rewards a user might bring; tests name them as ``module:function``."""

import numpy as np


def thrift(step):
    return -step.r2


def memory_of_everything(step):
    return step.r1_norm + 10.0 * step.r2_norm + 100.0 * step.cpu + 1000.0 * step.node


def wrong_shape(step):
    return np.zeros(3)


not_a_function = 7
