// A library whose loading does not end.
#include <cstdio>
#include <unistd.h>

namespace {

[[gnu::constructor]] void load_slowly() {
  std::fputs("the library is being loaded\n", stderr);
  for (;;)
    ::pause();
}

} // namespace
