// The messages waiting on one stream, and which gRPC operation may be started next. For this module only.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>

#include "core/base/mutex.h"

namespace tdock::rpc {

// gRPC accepts one write of a call at a time, and nothing after the end. A caller that gets a step from Next() carries
// it out, and no other step is given until that is done; none follows the last. Thread-safe; never calls gRPC.
//
//   Push, End, Uncork, Done  ──►  Next()  ──►  the caller starts what it says  ──►  Done(ok)
class Outgoing {
 public:
  enum class Step {
    kNone,
    kWrite,      // write the message
    kWriteLast,  // write the message, and that it is the last
    kEnd,        // say that there is nothing more
  };

  // False if nothing more can be sent: then the message is dropped.
  bool Push(grpc::ByteBuffer message, int64_t size_bytes) TDOCK_EXCLUDES(mu_);
  // Nothing follows. False if that was said before.
  bool End() TDOCK_EXCLUDES(mu_);
  // The peer is gone, or the call is over: drops waiting messages.
  void Abandon() TDOCK_EXCLUDES(mu_);

  // Between Cork and Uncork, no message is written: what is pushed in between is sent together with the end, in fewer
  // packets.
  void Cork() TDOCK_EXCLUDES(mu_);
  void Uncork() TDOCK_EXCLUDES(mu_);

  Step Next(grpc::ByteBuffer* message) TDOCK_EXCLUDES(mu_);
  // The previous step has been carried out; a failed one abandons the stream.
  void Done(bool ok) TDOCK_EXCLUDES(mu_);

  // Whether the stream was abandoned, or the last step was given.
  bool over() const TDOCK_EXCLUDES(mu_);
  // The bytes of the messages that were pushed and are not done.
  int64_t queued_bytes() const TDOCK_EXCLUDES(mu_);

 private:
  struct Waiting {
    grpc::ByteBuffer message;
    int64_t size_bytes;
  };

  mutable Mutex mu_;
  std::deque<Waiting> waiting_ TDOCK_GUARDED_BY(mu_);
  int64_t queued_bytes_ TDOCK_GUARDED_BY(mu_) = 0;
  int64_t in_flight_bytes_ TDOCK_GUARDED_BY(mu_) = 0;
  int corks_ TDOCK_GUARDED_BY(mu_) = 0;
  bool in_flight_ TDOCK_GUARDED_BY(mu_) = false;
  bool ended_ TDOCK_GUARDED_BY(mu_) = false;      // End() was called
  bool end_given_ TDOCK_GUARDED_BY(mu_) = false;  // … and given as a step
  bool abandoned_ TDOCK_GUARDED_BY(mu_) = false;
};

}  // namespace tdock::rpc
