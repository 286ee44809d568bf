// Scores that an HTTP server computes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "trainer/reward/external/score_source.h"

namespace tdock::reward {

struct HttpOptions {
  std::string name;  // of the source
  std::string url;
  std::string token_env = {};  // the environment variable that has the bearer token; empty: none is sent
  std::string ca_file = {};    // certificates (PEM) that are trusted; empty: the system's
  bool verify = true;          // check the server's certificate
  int64_t connections = 1;     // requests at a time, of each call of Score()
  int64_t batch_size = 16;     // most samples of a request
  absl::Duration timeout = absl::Seconds(30);  // for each sample of a request, its answer included
  int64_t retries = 2;                         // more tries of a sample
  Clock& clock = Clock::Real();
};

// A POST for each batch of samples. A failed connection and the codes 429, 502, 503 and 504 are nobody's fault: the
// request is repeated, after a wait. If the server answers anything else that is no whole answer, or not in time, the
// samples that have no score yet are sent one by one. What repeating cannot change (other codes from 300 to 499, a
// certificate that is not accepted) is an error of the batch at once. InvalidArgument for a URL that is not valid, a
// token that is not there, or a file without certificates.
absl::StatusOr<std::unique_ptr<ScoreSource>> MakeHttpSource(const HttpOptions& options);

// How such a source is called without a name of its own: the host and the path of its URL. InvalidArgument as above.
absl::StatusOr<std::string> HttpSourceName(const std::string& url);

}  // namespace tdock::reward
