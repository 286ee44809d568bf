// Which servers there are: those of the configuration, and those of a file that others may change.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "trainer/rollout_servers/server_client.h"

namespace tdock::trainer {

struct ServerEngineOptions;

// The file has one URL in a line; empty lines and those that begin with '#' are passed over. Not thread-safe.
class ServerList {
 public:
  // InvalidArgument for a URL that is not valid; the error of reading the file.
  static absl::StatusOr<ServerList> Create(Env& env, const std::vector<std::string>& urls, const std::string& file,
                                           ServerAccess access);
  // Those that the options name. The errors of MakeServerAccess(), too.
  static absl::StatusOr<ServerList> Of(const ServerEngineOptions& options, Env& env);

  // Each once.
  const std::vector<ServerClient>& servers() const { return servers_; }

  // Looks whether the file has changed, at most twice in a second. One that cannot be read, or has something else than
  // URLs, changes nothing. Whether servers() has changed.
  bool Refresh(absl::Time now);
  // What was wrong with the file when it was last looked at.
  const absl::Status& trouble() const { return trouble_; }

 private:
  ServerList(Env& env, const std::string& file, ServerAccess access)
      : env_(&env), file_(file), access_(std::move(access)) {}

  absl::Status Read();

  Env* env_;
  std::string file_;
  ServerAccess access_;
  std::vector<ServerClient> configured_, servers_;
  std::string text_;
  absl::Time looked_ = absl::InfinitePast();
  absl::Status trouble_;
};

}  // namespace tdock::trainer
