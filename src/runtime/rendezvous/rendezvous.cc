#include "runtime/rendezvous/rendezvous.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace tdock::runtime {
namespace {

std::string FirstLine(absl::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(std::max<int64_t>(absl::ToInt64Milliseconds(duration), 1));
}

class TcpRendezvous final : public Rendezvous {
 public:
  TcpRendezvous(c10::intrusive_ptr<c10d::TCPStore> store, int restart_count)
      : store_(std::move(store)), prefix_(absl::StrCat("tdock/", restart_count, "/")) {}

  absl::Status Publish(absl::string_view key, absl::string_view value) override {
    try {
      store_->set(absl::StrCat(prefix_, key), std::vector<uint8_t>(value.begin(), value.end()));
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("telling the other ranks '", key, "': ", FirstLine(error.what())));
    }
  }

  absl::StatusOr<std::string> Await(absl::string_view key, absl::Duration timeout) override {
    const std::string name = absl::StrCat(prefix_, key);
    try {
      store_->wait({name}, Milliseconds(timeout));
      const std::vector<uint8_t> value = store_->get(name);
      return std::string(value.begin(), value.end());
    } catch (const std::exception& error) {
      return absl::DeadlineExceededError(absl::StrCat("rank 0 has not said '", key, "' within ",
                                                      absl::FormatDuration(timeout), ": ", FirstLine(error.what())));
    }
  }

 private:
  const c10::intrusive_ptr<c10d::TCPStore> store_;
  const std::string prefix_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Open(const RankEnvironment& environment,
                                                             absl::Duration timeout) {
  const std::string address = absl::StrCat(environment.master_addr, ":", environment.master_port);
  const bool serves = environment.rank == 0 && !environment.uses_agent_store;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = Milliseconds(timeout);
  options.useLibUV = false;  // what serves a few keys need not scale
  try {
    return std::make_unique<TcpRendezvous>(c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options),
                                           environment.restart_count);
  } catch (const std::exception& error) {
    return absl::UnavailableError(serves ? absl::StrCat("rank 0 cannot listen at port ", environment.master_port,
                                                        " (MASTER_PORT): ", FirstLine(error.what()),
                                                        ". Give all ranks another MASTER_PORT")
                                         : absl::StrCat("rank ", environment.rank, " does not reach rank 0 at ",
                                                        address, " (MASTER_ADDR and MASTER_PORT) within ",
                                                        absl::FormatDuration(timeout), ": ", FirstLine(error.what())));
  }
}

}  // namespace tdock::runtime
