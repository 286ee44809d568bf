// Servers in processes of their own, for the tests of this module: this program, started again with a role.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/child_process.h"
#include "core/base/testing/patience.h"

namespace tdock::rpc {

// Starts this program in a role.
inline std::unique_ptr<ChildProcess> StartRole(std::vector<std::string> role) {
  role.insert(role.begin(), "/proc/self/exe");
  absl::StatusOr<std::unique_ptr<ChildProcess>> process = ChildProcess::Start(role);
  EXPECT_EQ(process.status(), absl::OkStatus());
  return *std::move(process);
}

// The port of a server, which the server prints first.
inline int PortOf(ChildProcess& server) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(server.ReadLine(kPatience).value_or(""), &port));
  return port;
}

}  // namespace tdock::rpc
