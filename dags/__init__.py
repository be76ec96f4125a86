"""Airflow wiring: DAGs whose tasks are the stages of dvc.yaml."""
