"""Label-free calibration of a frozen CLIP from sums over clients.

    log posterior(c) = text_scale log p(c) + logit_bias(c) + log class_prior(c) - feature_scale / 2 distance^2(c)

posterior     the model of the posteriors, and the prototypes in it
label_shift   a client's class prior without labels, and the evidence for it
statistics    the sums that a client computes from its images
estimation    the state machine that every party runs on the totals of these sums
validation    which sums no images can have
"""
