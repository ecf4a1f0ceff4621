"""Label-free calibration of a frozen CLIP from sums over clients.

    log posterior(c) = text_scale log p(c) + logit_bias(c) + log class_prior(c) - feature_scale / 2 distance^2(c)

posterior     the model of the posteriors, with its prototypes
label_shift   label-shift estimation, and the evidence for a client's class prior
statistics    the sums over its images that a client computes
estimation    the estimation as a state machine on the totals of these sums
validation    checks on sums, which reject those that no images can have
"""
