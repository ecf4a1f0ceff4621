"""Flower's ClientApp, for `flwr run`: the node's own settings say which site answers."""

from flwr.app import Context

from ..deployment.site.replies import Answerer, make_client_app


def site_of(context: Context) -> Answerer:
    """The site that the node's own settings describe: `flower-supernode --node-config 'images="..." ...'`."""
    from .sites import answerer_of  # brings torch

    return answerer_of(context.node_config, context.run_config)


app = make_client_app(site_of)
