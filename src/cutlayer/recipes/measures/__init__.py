"""Measurements that are science of their own: neither a declaration of a paper nor part of the product."""
