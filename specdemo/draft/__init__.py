"""Making a draft for a target out of the target's own answers: data, n-gram table, training, evaluation."""
