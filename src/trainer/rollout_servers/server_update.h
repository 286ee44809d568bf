// One update of the weights of a server of another program, step by step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "trainer/rollout_servers/server_client.h"
#include "trainer/rollout_servers/tasks.h"

namespace tdock::trainer {

class FolderDigests;
class WeightCheck;
struct WeightGroupLink;

// A server that is to have weights.
struct Recipient {
  ServerClient client;
  int64_t version = 0;  // the label that the server is to give them
  ServerKind kind = ServerKind::kTdock;
  // State of one start of a vLLM or an SGLang; used by one update at a time.
  std::shared_ptr<WeightCheck> check = {};
  std::shared_ptr<WeightGroupLink> link = {};
};

struct Delivery {
  Sent sent = {};  // of what failed, or of the last request
  UpdateCard said = {};
};

struct SendOptions {
  bool keep_cache = false;                        // answers in progress go on with what they have read
  absl::Duration timeout = absl::ZeroDuration();  // of each request
  std::function<absl::Status()> check_stop = {};  // any thread may call it; its errors are Cancelled
  Clock* clock = nullptr;
  Tasks* tasks = nullptr;

  // Limits of a request that begins now.
  reward::Patience PatienceOfRequest(absl::Duration most = absl::InfiniteDuration()) const {
    return {.clock = *clock, .deadline = clock->Now() + std::min(timeout, most), .check_stop = check_stop};
  }
};

// Each step returns false once one has failed, and `delivery` says how. A server that was halted goes on when the
// update ends, also after a failure or a stop. Not thread-safe.
class ServerUpdate {
 public:
  // All must outlive it.
  ServerUpdate(const Recipient& recipient, const SendOptions& options, Delivery& delivery)
      : recipient_(recipient), options_(options), delivery_(delivery) {}
  ~ServerUpdate() { GoOn(); }
  ServerUpdate(const ServerUpdate&) = delete;
  ServerUpdate& operator=(const ServerUpdate&) = delete;

  bool Halt();
  // Reads the answer by ReadUpdate().
  bool Call(const WireCall& call);
  // Compares the label that the server says with the recipient's.
  bool CompareLabel();
  // Compares the server's digests, if it gives some, with those of the folder.
  bool CompareDigests(FolderDigests& sent);
  bool GoOn();
  // Fails with an error of this process.
  bool Fail(const absl::Status& status);

  bool ok() const { return delivery_.sent.status.ok(); }

 private:
  const Recipient& recipient_;
  const SendOptions& options_;
  Delivery& delivery_;
  bool is_halted_ = false;
};

}  // namespace tdock::trainer
