#include "trainer/rollout_servers/server_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "trainer/rollout_servers/server_engine.h"

namespace tdock::trainer {
namespace {

constexpr uint64_t kMostFileBytes = 1 << 20;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(500);

void AddNew(std::vector<ServerClient>& servers, const ServerClient& server) {
  const bool known = std::any_of(servers.begin(), servers.end(),
                                 [&](const ServerClient& one) { return one.shown() == server.shown(); });
  if (!known) servers.push_back(server);
}

}  // namespace

absl::StatusOr<ServerList> ServerList::Create(Env& env, const std::vector<std::string>& urls, const std::string& file,
                                              ServerAccess access) {
  ServerList list(env, file, std::move(access));
  for (const std::string& url : urls) {
    const absl::StatusOr<ServerClient> server = ServerClient::Create(url, list.access_);
    if (!server.ok()) return Annotate(server.status(), "rollout.servers");
    AddNew(list.configured_, *server);
  }
  if (urls.empty() && file.empty()) {
    return absl::InvalidArgumentError("there are no servers: rollout.servers or rollout.servers_file names some");
  }
  list.servers_ = list.configured_;
  if (!file.empty()) TDOCK_RETURN_IF_ERROR(list.Read());
  return list;
}

absl::StatusOr<ServerList> ServerList::Of(const ServerEngineOptions& options, Env& env) {
  TDOCK_ASSIGN_OR_RETURN(ServerAccess access, MakeServerAccess(options.key_env, options.ca_file));
  return Create(env, options.urls, options.urls_file, std::move(access));
}

absl::Status ServerList::Read() {
  const auto fail = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("rollout.servers_file ", file_));
  };
  const absl::StatusOr<std::string> text = ReadFileUpTo(*env_, file_, kMostFileBytes);
  if (!text.ok()) return fail(text.status());
  std::vector<ServerClient> servers = configured_;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(*text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || absl::StartsWith(line, "#")) continue;
    const absl::StatusOr<ServerClient> server = ServerClient::Create(std::string(line), access_);
    if (!server.ok()) return fail(Annotate(server.status(), absl::StrCat("line ", number)));
    AddNew(servers, *server);
  }
  text_ = *text;
  servers_ = std::move(servers);
  return absl::OkStatus();
}

bool ServerList::Refresh(absl::Time now) {
  if (file_.empty() || now < looked_ + kBetweenLooks) return false;
  looked_ = now;
  const std::string before = text_;
  trouble_ = Read();
  return trouble_.ok() && text_ != before;
}

}  // namespace tdock::trainer
