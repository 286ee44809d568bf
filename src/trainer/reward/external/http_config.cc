#include "trainer/reward/external/http_config.h"

#include "trainer/reward/external/http_url.h"

namespace tdock::reward {

void BindHttpReward(config::Spec& spec, HttpRewardConfig& c) {
  spec.Strings("reward.url", &c.urls, "HTTP servers that score answers: a batch is posted to each, as JSON.");
  spec.Strings("reward.url_weights", &c.weights, "Their weights in the sum, in their order; empty: 1.");
  spec.String("reward.url_token_env", &c.token_env,
              "Environment variable with the bearer token for the servers; empty: none is sent.");
  spec.String("reward.url_ca_file", &c.ca_file,
              "Certificates (PEM) that are trusted for https; empty: those of the system.");
  spec.Bool("reward.url_verify", &c.verify, "Check the certificates of the servers.");
  spec.Check({"reward.url"}, [&c] {
    std::vector<std::string> wrong;
    for (const std::string& url : c.urls) {
      if (const auto parsed = ParseHttpUrl(url); !parsed.ok()) wrong.emplace_back(parsed.status().message());
    }
    return wrong;
  });
  spec.Unused(
      {"reward.url_token_env", "reward.url_ca_file", "reward.url_verify"}, [&c] { return c.urls.empty(); },
      "there is no reward.url");
}

}  // namespace tdock::reward
