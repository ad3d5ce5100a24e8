"""Fully connected networks, and rows of images."""

import jax.random as jr

import gfdyn as gf


def rows(images):
    return images.reshape(len(images), -1)


def mlp(widths, init=None, seed=0, **options):
    return gf.nets.MLP(widths, key=jr.key(seed), init=init, **options)
