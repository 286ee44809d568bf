// Failures of accept(), counted for metrics and told on a log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace tdock {

// The failures of one listening socket. The log gets a sentence when the first connection cannot be accepted, another
// each time the number of failures has doubled, and one when no connection waits any more, so that a server that lacks
// descriptors for days writes few lines. Thread-safe.
class AcceptFailures {
 public:
  using Log = std::function<void(const std::string& sentence)>;

  // `log` is called without a lock, and may be empty. `clock` must outlive the object.
  explicit AcceptFailures(Log log, Clock& clock = Clock::Real()) : log_(std::move(log)), clock_(clock) {}

  // Names the address in sentences.
  void ListensOn(std::string where) TDOCK_EXCLUDES(mu_);

  // True for errors that say that the system has no room for another connection: it stays in the queue of the socket,
  // which is readable until then. Others are those of a connection that has gone.
  static bool IsShortage(int error);

  // accept() failed with this shortage.
  void Add(int error) TDOCK_EXCLUDES(mu_);
  // All connections that waited have been accepted.
  void End() TDOCK_EXCLUDES(mu_);

  // True from Add() to End().
  bool failing() const TDOCK_EXCLUDES(mu_);
  // Failures since the start.
  int64_t count() const TDOCK_EXCLUDES(mu_);

 private:
  const Log log_;
  Clock& clock_;
  mutable Mutex mu_;
  std::string where_ TDOCK_GUARDED_BY(mu_) = "its address";
  bool failing_ TDOCK_GUARDED_BY(mu_) = false;
  bool said_ TDOCK_GUARDED_BY(mu_) = false;  // the last sentence was about a failure
  int64_t count_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t recent_ TDOCK_GUARDED_BY(mu_) = 0;  // without a pause of kCalm between them
  int64_t next_said_ TDOCK_GUARDED_BY(mu_) = 1;
  absl::Time last_ TDOCK_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace tdock
