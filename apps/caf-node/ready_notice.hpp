#pragma once

/// Tells systemd that a service of Type=notify is ready, if it is one (sd_notify(3)).
void notify_ready();
