/// What a build's identity is tested with: code, a constant, and data that may change.
#include <cstdio>

#ifndef RATE
#define RATE 0.1
#endif
#ifndef STEPS
#define STEPS 3
#endif

double rate = RATE;

int main() {
  for (int i = 0; i < STEPS; ++i)
    std::printf("%f\n", rate * i);
}
