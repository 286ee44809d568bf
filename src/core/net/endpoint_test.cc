#include "core/net/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tdock::net {
namespace {

TEST(Endpoint, IsParsedFromNamesAndAddressesAndPrintedAsItWas) {
  for (const char* text : {"localhost:7000", "127.0.0.1:0", "[::1]:65535", "node-3.cluster:80"}) {
    const auto endpoint = ParseEndpoint(text, "the address");
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->ToString(), text);
  }
  EXPECT_EQ(ParseEndpoint("[::1]:7", "the address")->host, "::1");
  EXPECT_EQ(ParseEndpoint("[::1]:7", "the address")->port, 7);
}

TEST(Endpoint, RefusesWhatIsNotHostAndPort) {
  for (const char* text : {"", "localhost", ":7000", "localhost:", "localhost:http", "localhost:65536", "localhost:-1",
                           "::1:7000", "[]:1", "[::1:7000"}) {
    const auto endpoint = ParseEndpoint(text, "the address");
    EXPECT_TRUE(absl::IsInvalidArgument(endpoint.status())) << text;
    EXPECT_THAT(std::string(endpoint.status().message()),
                testing::HasSubstr("the address '" + std::string(text) + "'"));
  }
}

TEST(Endpoint, IsLoopbackOnlyIfEveryAddressOfItsHostIs) {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(IsLoopback({host, 1}).value()) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "128.0.0.1", "2001:db8::1"}) {
    EXPECT_FALSE(IsLoopback({host, 1}).value()) << host;
  }
  EXPECT_TRUE(absl::IsNotFound(IsLoopback({"no such host", 1}).status()));
}

}  // namespace
}  // namespace tdock::net
