// A dock over a session.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "dock/service/wire/client_session.h"
#include "tdock/dock.h"

namespace tdock::service {

// `clock` is for deadlines. Both must outlive the dock unless it shares them.
std::unique_ptr<Dock> MakeRemoteDock(std::shared_ptr<ClientSession> session, Clock& clock);

}  // namespace tdock::service
