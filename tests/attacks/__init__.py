"""Floods and freezes, run against the whole service while another tenant works in it."""
