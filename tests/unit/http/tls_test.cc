// Goal: under TLS a connection carries the same bytes: requests and replies of any size, cut
// anywhere, sent ahead, read slowly; http on such a port is told so; certificates are renewed
// without a restart, and files that cannot be used are named.
#include <gmock/gmock.h>

#include <fstream>
#include <iostream>
#include <random>

#include "router/front_end/http/http_server.h"
#include "tests/testing/https_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using testing::Certificate;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using testing::HttpSocket;
using testing::HttpsSocket;

std::filesystem::path Folder(const std::string& name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      absl::StrCat("tandem-tls-", name, "-", ::getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

// Echoes each request's body, under TLS.
absl::StatusOr<std::unique_ptr<HttpServer>> StartEcho(const Certificate& certificate) {
  HttpServerOptions options;
  options.address = "127.0.0.1:0";
  options.threads = 2;
  options.tls = {.certificate = certificate.path(), .key = certificate.key_path()};
  HttpConnection::Hooks hooks;
  hooks.handle = [](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    if (request.path != "/stream") {
      return exchange->Reply({200, "text/plain", std::move(request.body)});
    }
    exchange->BeginStream({200, "text/plain", ""});
    for (size_t i = 0; i < request.body.size(); i += 1000) {
      exchange->WriteStream(absl::string_view(request.body).substr(i, 1000));
    }
    exchange->EndStream(true, "");
  };
  hooks.fault = [](int status, const std::string& message, const auto&) {
    return HttpReply{status, "text/plain", message};
  };
  return HttpServer::Start(options, std::move(hooks));
}

TEST(Tls, CarriesWhatPlainConnectionsDo) {
  const auto seed = static_cast<uint32_t>(std::random_device()());
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const std::filesystem::path folder = Folder("echo");
  const Certificate certificate(folder);
  ASSERT_OK_AND_ASSIGN(const auto server, StartEcho(certificate));
  for (int connection = 0; connection < 8; ++connection) {
    HttpsSocket socket(server->address(), certificate.path());
    EXPECT_EQ(socket.protocol(), "http/1.1");
    std::vector<std::string> bodies;
    std::string sent;
    for (int i = 0; i < 4; ++i) {
      std::string body(random() % (i == 3 ? 2000000 : 40000), '\0');
      for (char& c : body) c = static_cast<char>('a' + random() % 26);
      sent += testing::PostOf(random() % 2 == 0 ? "/stream" : "/", body);
      bodies.push_back(std::move(body));
    }
    // The last is long: what it waits behind must be read first.
    for (size_t at = 0; at < sent.size();) {
      const size_t size = std::min<size_t>(sent.size() - at, 1 + random() % 50000);
      ASSERT_TRUE(socket.Send(sent.substr(at, size)));
      at += size;
    }
    for (const std::string& body : bodies) {
      const HttpAnswer answer = socket.Read();
      ASSERT_EQ(answer.status, 200);
      ASSERT_TRUE(answer.complete);
      ASSERT_EQ(answer.body, body);
    }
  }
  server->Stop();
  std::filesystem::remove_all(folder);
}

TEST(Tls, TellsPlainHttpSo) {
  const std::filesystem::path folder = Folder("plain");
  const Certificate certificate(folder);
  ASSERT_OK_AND_ASSIGN(const auto server, StartEcho(certificate));
  HttpSocket plain(server->address());
  ASSERT_TRUE(plain.Send(testing::GetOf("/version")));
  const HttpAnswer answer = plain.Read();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("https"));
  EXPECT_FALSE(plain.ReadSome());
  // Garbage is dropped, and who comes after it served.
  HttpSocket garbage(server->address());
  ASSERT_TRUE(garbage.Send(std::string(600, '\x16')));
  EXPECT_FALSE(garbage.ReadSome());
  HttpsSocket next(server->address(), certificate.path());
  ASSERT_TRUE(next.Send(testing::PostOf("/", "still here")));
  EXPECT_EQ(next.Read().body, "still here");
  server->Stop();
  std::filesystem::remove_all(folder);
}

TEST(Tls, ReadsRenewedFilesAgain) {
  const std::filesystem::path folder = Folder("renew");
  const Certificate first(folder, "tls", 1);
  ASSERT_OK_AND_ASSIGN(const auto context, TlsContext::Load({first.path(), first.key_path()}));
  const absl::Time start = absl::UnixEpoch();
  const auto serial_at = [&](absl::Duration after) {
    const TlsSession session = context->NewSession(0, start + after);
    return ASN1_INTEGER_get(X509_get0_serialNumber(SSL_get_certificate(session.get())));
  };
  EXPECT_EQ(serial_at(absl::ZeroDuration()), 1);
  const auto later = [&](const std::string& path, int seconds) {
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(seconds));
  };
  const Certificate second(folder, "tls", 2);
  later(second.path(), 5);
  EXPECT_EQ(serial_at(absl::Seconds(9)), 1) << "files are looked at every ten seconds";
  EXPECT_EQ(serial_at(absl::Seconds(11)), 2);
  // Half renewed: the key is not the certificate's. What was before goes on until both fit.
  const std::string key = second.key_path() + ".old";
  std::filesystem::copy_file(second.key_path(), key);
  const Certificate third(folder, "tls", 3);
  later(third.path(), 10);
  std::filesystem::copy_file(third.key_path(), third.key_path() + ".new");
  std::filesystem::rename(key, third.key_path());
  EXPECT_EQ(serial_at(absl::Seconds(22)), 2);
  std::filesystem::rename(third.key_path() + ".new", third.key_path());
  later(third.key_path(), 10);
  EXPECT_EQ(serial_at(absl::Seconds(33)), 3);
  std::filesystem::remove_all(folder);
}

TEST(Tls, NamesFilesThatCannotBeUsed) {
  const std::filesystem::path folder = Folder("files");
  const Certificate one(folder, "one"), other(folder, "other");
  const std::string text = (folder / "text").string();
  std::ofstream(text) << "not PEM";
  const auto refused = [](const std::string& certificate, const std::string& key) {
    const auto loaded = TlsContext::Load({certificate, key});
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loaded.status().message());
  };
  EXPECT_OK(TlsContext::Load({one.path(), one.key_path()}).status());
  EXPECT_THAT(refused(one.path(), ""), HasSubstr("both"));
  EXPECT_THAT(refused("/nowhere.crt", one.key_path()),
              HasSubstr("tls-cert: cannot read /nowhere.crt"));
  EXPECT_THAT(refused(folder, one.key_path()),
              HasSubstr("tls-cert: cannot read " + folder.string() + ": Is a directory; expected"));
  EXPECT_THAT(refused(one.path(), folder),
              HasSubstr("tls-key: cannot read " + folder.string() + ": Is a directory; expected"));
  EXPECT_THAT(refused(text, one.key_path()), HasSubstr("tls-cert: "));
  EXPECT_THAT(refused(one.path(), text), HasSubstr("tls-key: "));
  EXPECT_THAT(refused(one.path(), other.key_path()), HasSubstr("tls-key: "));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::router
