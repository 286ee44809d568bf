// Certificates for the tests of this module.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/rpc/testing/servers.h"

namespace tdock::rpc {

// A folder with certificates made by the openssl command: two CAs, and a pair of certificates by each for 127.0.0.1.
class Certificates : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(testing::TempDir() + "rpc_certificates." + std::to_string(getpid()));
    std::filesystem::create_directories(*folder_);
    for (const std::string name : {"ours", "theirs"}) {
      Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name + "-ca -keyout " +
          name + "-ca.key -out " + name + "-ca.pem");
      Run("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name +
          ".key -out " + name + ".csr");
      std::ofstream(Path(name + ".ext")) << "subjectAltName=IP:127.0.0.1,DNS:" << name << ".example\n";
      Run("x509 -req -days 2 -in " + name + ".csr -CA " + name + "-ca.pem -CAkey " + name + "-ca.key -CAcreateserial " +
          "-extfile " + name + ".ext -out " + name + ".pem");
    }
    Run("ec -in ours.key -aes256 -passout pass:secret -out locked.key");
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*folder_);
    delete folder_;
  }

  static std::string Path(const std::string& name) { return *folder_ + "/" + name; }
  static void Run(const std::string& arguments) {
    const std::string command = "cd '" + *folder_ + "' && openssl " + arguments + " > openssl.log 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static TlsFiles Files(const std::string& pair, const std::string& authority) {
    return {.certificate = pair.empty() ? "" : Path(pair + ".pem"),
            .key = pair.empty() ? "" : Path(pair + ".key"),
            .ca = authority.empty() ? "" : Path(authority + "-ca.pem")};
  }
  // A call over a new connection. A client that is refused keeps trying until the timeout.
  static absl::Status TryToConnect(int port, const TlsFiles& tls, const std::string& name = "",
                                   absl::Duration timeout = absl::Seconds(1)) {
    auto client = StreamClient::Connect(
        {.target = absl::StrCat("127.0.0.1:", port), .tls = tls, .tls_server_name = name, .connect_timeout = timeout});
    return client.ok() ? Ask(**client, "/echo", "x").status() : client.status();
  }
  static bool LetsIn(int port, const TlsFiles& tls, const std::string& name = "") {
    return TryToConnect(port, tls, name, kPatience).ok();
  }

 private:
  inline static std::string* folder_ = nullptr;
};

}  // namespace tdock::rpc
