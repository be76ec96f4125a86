"""What must hold of window tables before anything is trained on them.

``suites.yaml`` says what each table must look like (run by Great Expectations), ``cross`` what must hold between
tables and over time, ``drift`` how the request mix moved; ``verdict`` gathers what was found.
"""
