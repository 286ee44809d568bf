// A dock inside this process.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tdock/clock.h"
#include "tdock/dock.h"
#include "tdock/sampler.h"

namespace tdock {

struct LocalDockOptions {
  // Judges deadlines and leases; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;
  // By the names that consumers give.
  std::map<std::string, std::shared_ptr<CustomSampler>> samplers = {};
};

// Views outlive it; no call may be running when it is destroyed.
std::unique_ptr<Dock> MakeLocalDock(const LocalDockOptions& options = {});

}  // namespace tdock
