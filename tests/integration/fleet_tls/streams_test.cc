// Goal: under TLS a fleet answers as without it; who reads the network between router and nodes
// reads nothing of a request; certificates and authorities are replaced while streams run, which
// go on, and new connections use the new ones.
#include <openssl/ssl.h>
#include <signal.h>

#include "tests/integration/fleet_tls/tls_fleet.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/wire_tap.h"

namespace tandem::testing {
namespace {

class FleetUnderTls : public TlsFleet {
 protected:
  // A request with a name that can be found in what travels.
  void AskSpoken() {
    v1::GenerateRequest request;
    request.set_request_id("what-only-two-may-know");
    for (int i = 0; i < 200; ++i) request.mutable_tokens()->add_ids(i % 7);
    request.mutable_sampling()->set_seed(3);
    request.mutable_stop()->set_max_tokens(30);
    request.set_return_token_ids(true);
    const Answer answer = Collect(*client_, request);
    EXPECT_OK(answer.status);
    EXPECT_EQ(answer.tokens, Oracle(request));
  }

  // The serial number of the certificate that the fleet's port shows.
  std::string SerialShown() {
    // The router may close first: then a write of OpenSSL's would end this process.
    ::signal(SIGPIPE, SIG_IGN);
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_use_certificate_chain_file(context, (In("decode") + "/tls.crt").c_str());
    SSL_CTX_use_PrivateKey_file(context, (In("decode") + "/tls.key").c_str(), SSL_FILETYPE_PEM);
    BIO* bio = BIO_new_ssl_connect(context);
    BIO_set_conn_hostname(bio, fleet_.c_str());
    std::string serial;
    SSL* ssl = nullptr;
    BIO_get_ssl(bio, &ssl);
    const unsigned char protocols[] = "\x02h2";
    SSL_set_alpn_protos(ssl, protocols, sizeof protocols - 1);
    if (BIO_do_connect(bio) == 1) {
      X509* shown = SSL_get1_peer_certificate(ssl);
      const ASN1_INTEGER* number = X509_get0_serialNumber(shown);
      serial.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(number)),
                    static_cast<size_t>(ASN1_STRING_length(number)));
      X509_free(shown);
    }
    BIO_free_all(bio);
    SSL_CTX_free(context);
    return serial;
  }
  // Until the router shows another certificate than that.
  void AwaitOtherThan(const std::string& serial) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    std::string shown = serial;
    while ((shown == serial || shown.empty()) && absl::Now() < give_up) {
      load_.AwaitAnswers(1);
      shown = SerialShown();
    }
    EXPECT_NE(shown, serial);
    EXPECT_NE(shown, "");
  }

  std::vector<std::unique_ptr<WireTap>> taps_;  // live longer than who speaks through them
};

TEST_F(FleetUnderTls, TheNetworkReadsNothing) {
  for (const bool tls : {false, true}) {
    SCOPED_TRACE(tls);
    std::vector<std::string> flags = RouterFlags();
    if (!tls) flags.erase(flags.begin());
    StartRouter(flags);
    WireTap& tap = *taps_.emplace_back(std::make_unique<WireTap>(fleet_));
    for (const std::string role : {"prefill", "decode"}) {
      RunningProgram& node =
          StartNode(role, absl::StrCat(role, "-", tls), tls ? In(role) : "", tap.address());
      ASSERT_FALSE(node.AwaitLine("joined router").empty()) << node.log();
    }
    AskSpoken();
    EXPECT_GT(tap.bytes(), 1000u);
    EXPECT_EQ(tap.Saw("what-only-two-may-know"), !tls);
    EXPECT_EQ(tap.Saw(absl::StrCat("prefill-", tls)), !tls);
  }
}

TEST_F(FleetUnderTls, CertificatesAreReplacedWhileStreamsRun) {
  StartWhole();
  const TestAuthority next("the next authority");
  const std::string both = absl::StrCat(authority_.certificate(), next.certificate());
  load_.Start({client_.get()}, 2);
  load_.AwaitAnswers(5);
  // Renewed under the same authority.
  std::string shown = SerialShown();
  ASSERT_NE(shown, "");
  authority_.Write(folder_ / "router", {.role = "router", .trusted = both});
  AwaitOtherThan(shown);
  // Another authority: first trusted by all, then used, then the only one. A process reads its
  // folder every ten seconds.
  for (const std::string role : {"prefill", "decode"})
    authority_.Write(folder_ / role, {.role = role, .trusted = both});
  next.Write(folder_ / "newcomer", {.role = "decode"});
  RunningProgram& newcomer = StartNode("decode", "decode-1", In("newcomer"));
  shown = SerialShown();
  // It trusts the next authority alone, so it joins when the router has changed.
  next.Write(folder_ / "router", {.role = "router", .trusted = both});
  AwaitOtherThan(shown);
  EXPECT_FALSE(newcomer.AwaitLine("joined router").empty()) << newcomer.log();
  load_.AwaitAnswers(20);
  for (const auto& process : processes_) {
    EXPECT_EQ(process->AwaitLine("lost the stream", absl::ZeroDuration()), "") << process->log();
    EXPECT_EQ(process->AwaitLine("node lost", absl::ZeroDuration()), "") << process->log();
  }
}

}  // namespace
}  // namespace tandem::testing
