"""The numbers of _layout.pxd, for Python."""


def sizes() -> dict:
    """Of the structs, as the compiler made them."""
    return {
        "publish": sizeof(PublishHead),
        "published": sizeof(PublishedHead),
        "acknowledge": sizeof(AcknowledgeHead),
        "run": sizeof(Run),
        "deliver": sizeof(DeliverHead),
        "delivered": sizeof(DeliveredHead),
        "settle": sizeof(SettleHead),
        "credit": sizeof(Credit),
        "records": sizeof(RecordsHead),
        "together": sizeof(TogetherHead),
        "spliced": sizeof(SplicedHead),
        "piece": sizeof(Piece),
    }
