"""Tests of deploy/kubernetes with kubectl and the schemas of Kubernetes: `make test-kubernetes`."""
