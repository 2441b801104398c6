current_platform = None


def resolve_current_platform_cls_qualname():
    pass
