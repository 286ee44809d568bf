// A dock over a session.
#pragma once

#include <memory>

#include "core/base/clock.h"
#include "dock/service/wire/client_session.h"
#include "tdock/dock.h"

namespace tdock {

// Deadlines are the clock's. Both must outlive what they are given to, as far as they are not shared.
std::unique_ptr<Dock> MakeRemoteDock(std::shared_ptr<ClientSession> session, Clock& clock);

}  // namespace tdock
