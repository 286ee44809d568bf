// For tests: endpoints at which one request arrives as soon as they are opened.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/environment/episode_endpoints.h"

namespace tdock::environment {

// Used by one thread, but for Wake().
class OneRequest final : public EpisodeEndpoints {
 public:
  OneRequest() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~OneRequest() override { close(descriptor_); }
  Endpoint Open(EpisodeId episode) override {
    come_.push_back({.episode = episode, .what = ChatRequest{.request = 4}});
    eventfd_write(descriptor_, 1);
    return {.base_url = absl::StrCat("http://here/", episode), .api_key = "secret", .model = "small"};
  }
  void Close(EpisodeId episode) override { closed.insert(episode); }
  std::vector<Event> Take() override {
    eventfd_t count = 0;
    eventfd_read(descriptor_, &count);
    return std::exchange(come_, {});
  }
  int descriptor() const override { return descriptor_; }
  void Wake() override { eventfd_write(descriptor_, 1); }
  void Answer(EpisodeId /*episode*/, int64_t request, const absl::StatusOr<Generated>& /*generated*/) override {
    answered.push_back(request);
  }

  std::set<EpisodeId> closed;
  std::vector<int64_t> answered;

 private:
  const int descriptor_;
  std::vector<Event> come_;
};

}  // namespace tdock::environment
