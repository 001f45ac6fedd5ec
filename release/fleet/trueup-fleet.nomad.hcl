# A worker on each client of Nomad that sees the datastore nas.
job "trueup-fleet-worker" {
  type = "system"

  constraint {
    attribute = "${meta.sees_nas}"
    value     = "true"
  }

  group "worker" {
    task "worker" {
      driver       = "exec"
      kill_timeout = "60s"

      config {
        command = "/usr/bin/trueup-fleet"
        args = [
          "worker", "--nats", "tls://nats.example.org:4222", "--tls-ca", "/etc/trueup-fleet/ca.pem",
          "--nkey", "/etc/trueup-fleet/seed", "--datastore", "nas=/nas", "--folder", "${NOMAD_TASK_DIR}/results",
          "--log-json",
        ]
      }

      resources {
        cpu    = 500
        memory = 2048
      }
    }
  }
}
