"""Small models, trained by mini-batches of stochastic gradient descent with momentum."""

import numpy as np

MOMENTUM = 0.9


class Linear:
    def __init__(self, rng, inputs, outputs):
        scale = np.sqrt(2.0 / inputs)
        self.parameters = [
            rng.normal(scale=scale, size=(inputs, outputs)).astype(np.float32),
            np.zeros(outputs, np.float32),
        ]

    def forward(self, x, training):
        self.x = x
        return x @ self.parameters[0] + self.parameters[1]

    def backward(self, gradient):
        self.gradients = [self.x.T @ gradient, gradient.sum(0)]
        return gradient @ self.parameters[0].T


class Relu:
    parameters = ()

    def forward(self, x, training):
        self.positive = x > 0
        return x * self.positive

    def backward(self, gradient):
        self.gradients = ()
        return gradient * self.positive


class BatchNorm:
    """Normalizes by the batch while it trains and by running means when it is tested: of all layers the
    one that minds most what is in a batch."""

    def __init__(self, width, keep=0.9, tiny=1e-5):
        self.parameters = [np.ones(width, np.float32), np.zeros(width, np.float32)]
        self.mean, self.variance = np.zeros(width, np.float32), np.ones(width, np.float32)
        self.keep, self.tiny = keep, tiny

    def forward(self, x, training):
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = x.mean(0), x.var(0)
            self.mean = self.keep * self.mean + (1 - self.keep) * mean
            self.variance = self.keep * self.variance + (1 - self.keep) * variance
        self.scale = 1.0 / np.sqrt(variance + self.tiny)
        self.normal = (x - mean) * self.scale
        return self.normal * self.parameters[0] + self.parameters[1]

    def backward(self, gradient):
        self.gradients = [(gradient * self.normal).sum(0), gradient.sum(0)]
        gradient = gradient * self.parameters[0]
        shared = gradient.mean(0) + self.normal * (gradient * self.normal).mean(0)
        return (gradient - shared) * self.scale


class Model:
    def __init__(self, layers):
        self.layers = layers
        self.velocities = [[np.zeros_like(p) for p in layer.parameters] for layer in layers]

    def forward(self, x, training=False):
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def learn(self, x, labels, rate):
        """One step on one batch."""
        scores = self.forward(x, training=True)
        scores = np.exp(scores - scores.max(1, keepdims=True))
        gradient = scores / scores.sum(1, keepdims=True)
        gradient[np.arange(len(labels)), labels] -= 1.0
        gradient /= len(labels)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        for layer, velocities in zip(self.layers, self.velocities):
            for p, velocity, g in zip(layer.parameters, velocities, layer.gradients):
                velocity *= MOMENTUM
                velocity -= rate * g
                p += velocity

    def accuracy(self, x, labels):
        return float((self.forward(x).argmax(1) == labels).mean())


def softmax(rng, data):
    return Model([Linear(rng, data.train.shape[1], data.classes)])


def mlp(rng, data):
    hidden = data.hidden
    return Model(
        [Linear(rng, data.train.shape[1], hidden), Relu(), Linear(rng, hidden, data.classes)]
    )


def mlp_batch_norm(rng, data):
    hidden = data.hidden
    first = Linear(rng, data.train.shape[1], hidden)
    return Model([first, BatchNorm(hidden), Relu(), Linear(rng, hidden, data.classes)])


KINDS = {"softmax": softmax, "MLP": mlp, "MLP with batch norm": mlp_batch_norm}
