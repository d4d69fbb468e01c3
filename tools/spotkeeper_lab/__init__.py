"""The lab: markets, fakes and a local AWS that run the deployed code without an account."""
