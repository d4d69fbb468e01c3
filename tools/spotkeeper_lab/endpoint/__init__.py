"""A local AWS to which `sam deploy` deploys: ministack, its capacity the simulated cloud."""
