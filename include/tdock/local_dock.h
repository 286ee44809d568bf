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
  // The clock for deadlines and leases; null: Clock::Real(). Must outlive the dock.
  Clock* clock = nullptr;
  // By the names that ConsumerOptions::custom_sampler gives.
  std::map<std::string, std::shared_ptr<CustomSampler>> samplers = {};
};

// Views stay valid after it is destroyed; no call may be running then.
std::unique_ptr<Dock> MakeLocalDock(const LocalDockOptions& options = {});

}  // namespace tdock
