// A dock inside this process.
#pragma once

#include <memory>

#include "tdock/dock.h"

namespace tdock {

class Clock;

struct LocalDockOptions {
  // Judges deadlines and leases; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;
};

// Views outlive it; no call may be running when it is destroyed.
std::unique_ptr<Dock> MakeLocalDock(const LocalDockOptions& options = {});

}  // namespace tdock
