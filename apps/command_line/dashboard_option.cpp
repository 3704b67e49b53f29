#include "dashboard_option.hpp"

#include "command_line.hpp"

#include <cstdio>
#include <utility>

namespace troupe::apps {

namespace {

constexpr auto any_port = "127.0.0.1:0";

} // namespace

dashboard_option::dashboard_option(CLI::App& app) {
  auto* listens = app.add_option("--dashboard", listen_,
                                 "Serve a page about the runs in --storage, for browsers; without a value on any free "
                                 "port of this machine. Beyond loopback it needs a token and a certificate")
                      ->type_name("HOST:PORT")
                      ->expected(0, 1)
                      ->default_str(any_port);
  app.add_option("--dashboard-token-file", token_file_, "A file with the token that who opens the page must know")
      ->needs(listens);
  auto* certificate =
      app.add_option("--dashboard-certificate", certificate_, "PEM file of the page's certificate chain, for HTTPS")
          ->needs(listens);
  auto* key = app.add_option("--dashboard-key", key_, "PEM file of its private key")->needs(certificate);
  certificate->needs(key);
}

dashboard_option::~dashboard_option() = default;

std::optional<int> dashboard_option::open(const std::filesystem::path& storage) {
  if (listen_.empty())
    return std::nullopt;
  auto made = make(storage);
  if (!made) {
    std::fprintf(stderr, "--dashboard: %s\n", made.error().message.c_str());
    return exit_usage;
  }
  page_ = std::move(*made);
  std::fprintf(stderr, "the dashboard is at %s\n", page_->url().c_str());
  return std::nullopt;
}

expected<std::unique_ptr<runtime::dashboard>> dashboard_option::make(const std::filesystem::path& storage) const {
  runtime::dashboard_options options;
  TROUPE_TRY(options.listen, parse_endpoint(listen_));
  options.storage = storage;
  options.certificate = certificate_;
  options.key = key_;
  if (token_file_.empty())
    return runtime::dashboard::open(std::move(options));
  TROUPE_TRY(options.token, runtime::read_token_file(token_file_));
  return runtime::dashboard::open(std::move(options));
}

} // namespace troupe::apps
