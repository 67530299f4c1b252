"""Jobs on a Kubernetes cluster, through KubeRay and Volcano."""
