#include "trainer/rollout_servers/server_update.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/rollout_servers/weight_check.h"

namespace tdock::trainer {
namespace {

// How long a server may take to go on, whatever stops the update.
constexpr absl::Duration kGoOnWithin = absl::Seconds(30);

}  // namespace

bool ServerUpdate::Fail(const absl::Status& status) {
  if (ok()) delivery_.sent = {.status = status, .trouble = Trouble::kFailed};
  return false;
}

bool ServerUpdate::Call(const WireCall& call) {
  if (!ok()) return false;
  delivery_.sent = recipient_.client.Call(call, options_.PatienceOfRequest());
  if (!ok()) return false;
  auto said = recipient_.client.Read(delivery_.sent, ReadUpdate(delivery_.sent.body));
  if (said.ok()) delivery_.said = *std::move(said);
  return ok();
}

bool ServerUpdate::Halt() {
  if (!ok()) return false;
  is_halted_ = true;  // also by a request whose answer is lost
  return Call(HaltCall(recipient_.kind));
}

bool ServerUpdate::GoOn() {
  if (!std::exchange(is_halted_, false)) return ok();
  const reward::Patience patience{.clock = *options_.clock, .deadline = options_.clock->Now() + kGoOnWithin};
  Sent sent = recipient_.client.Call(GoOnCall(recipient_.kind), patience);
  if (ok() && !sent.status.ok()) delivery_.sent = std::move(sent);
  return ok();
}

bool ServerUpdate::CompareLabel() {
  if (!Call(LabelCall(recipient_.kind))) return false;
  auto label = recipient_.client.Read(delivery_.sent, ReadLabel(delivery_.sent.body));
  if (!label.ok()) return false;
  if (*label == recipient_.version) return true;
  const absl::Status stale = absl::FailedPreconditionError(
      absl::StrCat("it was sent weights of version ", recipient_.version, ", and says that it has ",
                   *label ? absl::StrCat("those of version ", **label) : "weights with no version of ours",
                   ": does something else send it weights?"));
  return recipient_.client.Read<bool>(delivery_.sent, stale).ok();
}

bool ServerUpdate::CompareDigests(FolderDigests& sent) {
  if (!ok()) return false;
  Sent asked = recipient_.client.Call(DigestsCall(recipient_.kind), options_.PatienceOfRequest());
  if (!asked.status.ok() && asked.code != 0) return true;  // it gives none
  delivery_.sent = std::move(asked);
  if (!ok()) return false;
  const auto said = recipient_.client.Read(delivery_.sent, ReadDigests(delivery_.sent.body));
  if (!said.ok()) return false;
  const absl::Status compared = recipient_.check->Compare(*said, sent);
  return compared.ok() || recipient_.client.Read<bool>(delivery_.sent, compared).ok();
}

}  // namespace tdock::trainer
