#include "inference/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tdock::inference {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                          0.5,   1,      2.5,   5,    10,    25,   60,  300};

prometheus::Histogram& HistogramOf(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, kSeconds);
}

prometheus::Counter& CounterOf(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

}  // namespace

class Metrics::Impl {
 public:
  void Set(const char* name, const char* help, double value) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}).Set(value);
  }

  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("tdock_serve_requests_total")
                                                          .Help("Requests that have ended, by path and status.")
                                                          .Register(registry);
  prometheus::Family<prometheus::Counter>& answers = prometheus::BuildCounter()
                                                         .Name("tdock_serve_answers_total")
                                                         .Help("Answers that have ended, by reason.")
                                                         .Register(registry);
  prometheus::Counter& gone =
      CounterOf(registry, "tdock_serve_clients_gone_total", "Requests whose client went before it had its answer.");
  prometheus::Counter& prompt_tokens = CounterOf(registry, "tdock_serve_prompt_tokens_total", "Tokens of prompts.");
  prometheus::Counter& answer_tokens = CounterOf(registry, "tdock_serve_answer_tokens_total", "Tokens of answers.");
  prometheus::Counter& updates = CounterOf(registry, "tdock_serve_weight_updates_total", "Changes of the weights.");
  prometheus::Histogram& duration = HistogramOf(registry, "tdock_serve_request_seconds", "From a request to its end.");
  prometheus::Histogram& first =
      HistogramOf(registry, "tdock_serve_first_token_seconds", "From a request to the first token of its answer.");
  prometheus::Histogram& next =
      HistogramOf(registry, "tdock_serve_next_token_seconds", "From a token of an answer to the next.");
  prometheus::Histogram& update = HistogramOf(registry, "tdock_serve_weight_update_seconds",
                                              "What a change of the weights took, until all replicas served them.");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::CountRequest(absl::string_view path, int status, bool gone, absl::Duration duration) {
  impl_->requests.Add({{"path", std::string(path)}, {"status", absl::StrCat(status)}}).Increment();
  if (gone) impl_->gone.Increment();
  impl_->duration.Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountPrompt(int64_t tokens) { impl_->prompt_tokens.Increment(static_cast<double>(tokens)); }

void Metrics::CountAnswer(absl::string_view finish_reason, int64_t tokens) {
  impl_->answers.Add({{"finish_reason", std::string(finish_reason)}}).Increment();
  impl_->answer_tokens.Increment(static_cast<double>(tokens));
}

void Metrics::ObserveFirstToken(absl::Duration since_request) {
  impl_->first.Observe(absl::ToDoubleSeconds(since_request));
}
void Metrics::ObserveNextToken(absl::Duration since_last) { impl_->next.Observe(absl::ToDoubleSeconds(since_last)); }
void Metrics::CountWeightUpdate(absl::Duration duration) {
  impl_->updates.Increment();
  impl_->update.Observe(absl::ToDoubleSeconds(duration));
}

std::string Metrics::Text(const Gauges& gauges) {
  double running = 0, waiting = 0, preemptions = 0, shared = 0, guessed = 0, right = 0, used = 0, budget = 0;
  for (const engine::EngineStats& stats : gauges.engines) {
    running += static_cast<double>(stats.running);
    waiting += static_cast<double>(stats.waiting);
    preemptions += static_cast<double>(stats.preemptions);
    shared += static_cast<double>(stats.shared_tokens);
    guessed += static_cast<double>(stats.guessed_tokens);
    right += static_cast<double>(stats.right_guesses);
    used += static_cast<double>(stats.cache.held_bytes);
    budget += static_cast<double>(stats.cache.budget_bytes);
  }
  impl_->Set("tdock_serve_connections", "Connections that are open.", static_cast<double>(gauges.connections));
  impl_->Set("tdock_serve_requests_waiting", "Requests that wait for a thread.",
             static_cast<double>(gauges.waiting_requests));
  impl_->Set("tdock_serve_accept_failures", "Connections that could not be accepted for want of descriptors or memory.",
             static_cast<double>(gauges.accept_failures));
  impl_->Set("tdock_serve_answers_open", "Answers that have not ended.", static_cast<double>(gauges.open_answers));
  impl_->Set("tdock_serve_answers_running", "Answers that the engine works on.", running);
  impl_->Set("tdock_serve_answers_waiting", "Answers that wait for their turn.", waiting);
  impl_->Set("tdock_serve_preemptions", "Answers that were sent back because the cache was full.", preemptions);
  impl_->Set("tdock_serve_shared_prompt_tokens", "Tokens of prompts that were in the cache.", shared);
  impl_->Set("tdock_serve_guessed_tokens", "Tokens that were guessed (--speculative-tokens).", guessed);
  impl_->Set("tdock_serve_right_guesses", "Guesses that were the tokens which were then chosen.", right);
  impl_->Set("tdock_serve_cache_used_bytes", "Keys and values that are in use.", used);
  impl_->Set("tdock_serve_cache_budget_bytes", "Keys and values that there is room for.", budget);
  impl_->Set("tdock_serve_weights_version", "The version of the weights.", static_cast<double>(gauges.weights_version));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return std::move(out).str();
}

}  // namespace tdock::inference
