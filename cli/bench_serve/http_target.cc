// A target that speaks OpenAI's /v1/completions and /v1/chat/completions: implements NewHttpTarget
// (cli/bench_serve/load_target.h).
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/bench_serve/http_call.h"
#include "cli/bench_serve/load_target.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls.h"

namespace tandem::cli {
namespace {

namespace http = boost::beast::http;
using boost::asio::io_context;
using boost::asio::ip::tcp;
using boost::system::error_code;
using Json = nlohmann::json;

constexpr std::chrono::seconds kSetupTimeout(10);

// Sends one request and reads its whole reply, on a new connection and a context of its own.
class OneExchange {
 public:
  explicit OneExchange(const HttpPeer& peer) : peer_(peer) {}

  absl::StatusOr<http::response<http::string_body>> Run(http::verb method, const std::string& path,
                                                        std::string body) {
    request_ = MakeHttpRequest(peer_, method, path, std::move(body));
    stream_.Open([this](const error_code& error) {
      if (error) return Finish(error);
      http::async_write(stream_, request_, [this](const error_code& failed, size_t) {
        if (failed) return Finish(failed);
        http::async_read(stream_, buffer_, response_,
                         [this](const error_code& ended, size_t) { Finish(ended); });
      });
    });
    context_.run_for(kSetupTimeout);
    if (!done_) return absl::DeadlineExceededError("no reply within 10 s");
    if (error_) return absl::UnavailableError(error_.message());
    return std::move(response_);
  }

 private:
  void Finish(const error_code& error) {
    done_ = true;
    error_ = error;
  }

  const HttpPeer& peer_;
  io_context context_{1};
  HttpStream stream_{context_, peer_};
  http::request<http::string_body> request_;
  boost::beast::flat_buffer buffer_;
  http::response<http::string_body> response_;
  bool done_ = false;
  error_code error_;
};

Json MessagesOf(const LoadRequest& load) {
  if (load.messages.empty()) return Json::array({{{"role", "user"}, {"content", load.text}}});
  Json messages = Json::array();
  for (const LoadMessage& message : load.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return messages;
}

class HttpTarget final : public LoadTarget {
 public:
  HttpTarget(const TargetOptions& options, io_context& context)
      : options_(options), pool_(context) {}

  absl::Status Connect() {
    const TargetAddress& address = options_.address;
    pool_.peer.host = absl::StrCat(address.host, ":", address.port);
    pool_.peer.host_name = address.host;
    pool_.peer.api_key = options_.api_key;
    if (address.tls) {
      ASSIGN_OR_RETURN(rpc::SslContext tls, rpc::LoadClientSslContext(options_.tls));
      pool_.peer.tls = std::make_shared<boost::asio::ssl::context>(tls.release());
    }
    error_code error;
    tcp::resolver resolver(pool_.context);
    for (const auto& found : resolver.resolve(address.host, address.port, error)) {
      pool_.peer.endpoints.push_back(found.endpoint());
    }
    if (error) return Unreachable(error.message());
    model_ = options_.model;
    const auto reply =
        OneExchange(pool_.peer).Run(http::verb::get, address.path + "/v1/models", "");
    if (!reply.ok()) return Unreachable(reply.status().message());
    if (!model_.empty()) return absl::OkStatus();
    if (reply->result_int() != 200) {
      return absl::FailedPreconditionError(
          absl::StrCat(address.text(), "/v1/models answers with HTTP ", reply->result_int(), " (",
                       ErrorMessageOf(reply->body()), "); name the model with --model"));
    }
    const Json json = Json::parse(reply->body(), nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("data") && json["data"].is_array() &&
        !json["data"].empty() && json["data"][0].is_object() && json["data"][0].contains("id") &&
        json["data"][0]["id"].is_string()) {
      model_ = json["data"][0]["id"].get<std::string>();
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(address.text(), "/v1/models names no model; name one with --model"));
  }

  std::shared_ptr<LoadCall> Start(const LoadRequest& load, AnswerObserver& observer) override {
    Json body = {{"model", model_},
                 {"max_tokens", load.max_tokens},
                 {"temperature", options_.temperature},
                 {"seed", load.seed},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (options_.chat) {
      body["messages"] = MessagesOf(load);
    } else if (load.tokens.empty()) {
      body["prompt"] = load.text;
    } else {
      body["prompt"] = load.tokens;
    }
    const char* path = options_.chat ? "/v1/chat/completions" : "/v1/completions";
    if (options_.ignore_eos) body["ignore_eos"] = true;
    if (!load.service_tier.empty()) body["service_tier"] = load.service_tier;
    return StartHttpCall(
        pool_,
        MakeHttpRequest(pool_.peer, http::verb::post, options_.address.path + path,
                        body.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace)),
        observer);
  }

  const std::string& model() const override { return model_; }

  absl::StatusOr<int64_t> CountTokens(const std::string& text) override {
    const Json body = {{"model", model_}, {"prompt", text}};
    ASSIGN_OR_RETURN(const auto reply,
                     OneExchange(pool_.peer)
                         .Run(http::verb::post, options_.address.path + "/tokenize", body.dump()));
    const Json json = Json::parse(reply.body(), nullptr, /*allow_exceptions=*/false);
    if (reply.result_int() != 200 || !json.is_object() || !json.contains("count") ||
        !json["count"].is_number_integer()) {
      return absl::UnimplementedError(absl::StrCat("/tokenize: HTTP ", reply.result_int()));
    }
    return json["count"].get<int64_t>();
  }

 private:
  absl::Status Unreachable(absl::string_view why) const {
    return absl::UnavailableError(
        absl::StrCat("cannot reach ", options_.address.text(), ": ", why));
  }

  const TargetOptions options_;
  HttpPool pool_;
  std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadTarget>> NewHttpTarget(const TargetOptions& options,
                                                          io_context& context) {
  auto target = std::make_unique<HttpTarget>(options, context);
  RETURN_IF_ERROR(target->Connect());
  return target;
}

}  // namespace tandem::cli
