"""The ports over the simulated cloud, without boto3's wire."""
